import { BadRequestException, Body, Controller, Get, Inject, Param, Post } from '@nestjs/common'
import { Idempotent } from 'oncekey/nest'
import { PaymentsService, type Payment } from './payments-service.ts'

@Controller('payments')
export class PaymentsController {
  readonly #payments: PaymentsService

  constructor(@Inject(PaymentsService) payments: PaymentsService) {
    this.#payments = payments
  }

  /** A retry runs the handler again only if nothing was committed, so there was no effect. */
  @Post()
  @Idempotent({ operation: 'create-payment', onLapse: 'rerun' })
  async create(@Body() body: { readonly amountCents?: unknown }): Promise<void> {
    const { amountCents } = body
    if (typeof amountCents !== 'number' || !Number.isSafeInteger(amountCents) || amountCents <= 0) {
      throw new BadRequestException('amountCents must be a positive whole number')
    }
    await this.#payments.create(amountCents)
  }

  @Get(':id')
  read(@Param('id') id: string): Payment {
    return this.#payments.read(id)
  }
}

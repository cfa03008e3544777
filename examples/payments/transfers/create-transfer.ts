import { defineOperation } from 'oncekey/durable'
import { book } from '../books.ts'
import type { OperationParts } from '../operation-parts.ts'
import { problemReply } from '../http/problems.ts'
import { insertTransfer, settleTransfer, transferInput } from './transfer.ts'

/** Pays out in the background: its route accepts the request, and a worker runs it. */
export function createTransferOperation({ database, effects }: OperationParts) {
  return defineOperation({
    name: 'transfers.create',
    input: transferInput,
    effects: { payout: effects.payout },
    async run(op, input) {
      const { tenant, recordId } = op
      const { toAccount, amountCents, currency } = input
      const transferId = op.deterministicId('transfer')

      await op.transaction('record', (tx) =>
        insertTransfer(database.within(tx), { ...input, transferId, tenant, recordId }),
      )

      const payout = await op.external('payout', {
        amountCents,
        currency,
        reference: transferId,
        account: toAccount,
      })

      return op.finish('book', async (tx) => {
        const query = database.within(tx)
        await settleTransfer(query, transferId, payout)
        if (payout.status === 'declined') return declined(transferId)
        await book(query, payout, { tenant, recordId })
        return {
          status: 201,
          headers: { Location: `/transfers/${transferId}` },
          body: { transferId, status: 'paid', amountCents, toAccount, payoutId: payout.id },
        }
      })
    },
  })
}

function declined(transferId: string) {
  return problemReply({
    status: 402,
    code: 'transfer_declined',
    title: 'The transfer was declined',
    detail: 'The provider did not pay this account.',
    transferId,
  })
}

import type { ReplyInit } from 'oncekey'
import { defineOperation } from 'oncekey/durable'
import { book } from '../books.ts'
import type { OperationParts } from '../operation-parts.ts'
import { keyReusedReply, problemReply } from '../http/problems.ts'
import {
  recordTransfer,
  settleTransfer,
  transferInput,
  type Transfer,
  type TransferInput,
} from './transfer.ts'

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

      const recorded = await op.transaction('record', (tx) =>
        recordTransfer(database.within(tx), { ...input, transferId, tenant, recordId }),
      )
      if (recorded.kind === 'other_request') return keyReusedReply()
      if (recorded.kind === 'settled') return settled(recorded.row)

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
        return paid(transferId, input, payout.id)
      })
    },
  })
}

type Paid = Pick<TransferInput, 'amountCents' | 'toAccount'>

function paid(transferId: string, { amountCents, toAccount }: Paid, payoutId: string): ReplyInit {
  return {
    status: 201,
    headers: { Location: `/transfers/${transferId}` },
    body: { transferId, status: 'paid', amountCents, toAccount, payoutId },
  }
}

/** The first reply again, from the row. */
function settled({ transferId, payoutId, ...input }: Transfer): ReplyInit {
  return payoutId === null || input.status === 'declined'
    ? declined(transferId)
    : paid(transferId, input, payoutId)
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

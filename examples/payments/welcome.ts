import { randomUUID } from 'node:crypto'
import type { Settings } from './settings.ts'

/** The message of a process that is ready: its address, and requests to try. */
export function welcome({ role, databaseUrl, isDemo }: Settings, port: number): string {
  const address = `http://localhost:${port}`
  // Only the tokens of the demo are public.
  const token = isDemo ? 'demo-a' : '<your token>'
  const asOther = isDemo ? 'as "Bearer demo-b"' : 'as another user'
  if (role === 'worker') return `Payments worker ready on ${address}\nCtrl-C stops it.`
  return `Payments API listening on ${address}

Run this twice. The second reply is the first one again, with "Idempotent-Replayed: true":

  curl -i ${address}/payments \\
    -H 'Authorization: Bearer ${token}' \\
    -H 'Idempotency-Key: ${randomUUID()}' \\
    -H 'Content-Type: application/json' \\
    -d '{ "customerId": "cus_1", "amountCents": 1250, "currency": "USD" }'

Change the amount and keep the key: 422. Use the key ${asOther}: it is free.
Pay as customer "declined": 402, and 402 again. With the same headers, and other keys:

  refund    POST /payments/<paymentId>/refunds   { "amountCents": 250 }
  order     POST /orders      { "customerId": "cus_1", "sku": "tea", "quantity": 2 }
  transfer  POST /transfers   { "toAccount": "acct_1", "amountCents": 900, "currency": "USD" }
            answers 202: ask at its Location until it is paid

Let the provider lose half of its answers: FAULTS=effectThenDrop=0.5 npm start
${nodesHint(databaseUrl)}
Ctrl-C stops the service.`
}

function nodesHint(databaseUrl: string): string {
  const where = 'examples/payments/README.md'
  return databaseUrl === ''
    ? `Everything is in one SQLite file. For several nodes on PostgreSQL, see ${where}.`
    : `For more nodes and workers on this database, see ${where}.`
}

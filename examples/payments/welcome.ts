/** What the service says when it is ready: where it is, and how to see a replay. */
export function welcome(port: number): string {
  const address = `http://localhost:${port}`
  return `Payments API listening on ${address}

Run this twice. The second reply is the first one again, with "Idempotent-Replayed: true":

  curl -i ${address}/payments \\
    -H 'Authorization: Bearer demo-a' \\
    -H 'Idempotency-Key: "my-first-payment"' \\
    -H 'Content-Type: application/json' \\
    -d '{ "customerId": "cus_1", "amountCents": 1250, "currency": "USD" }'

Change the amount and keep the key: 422. Use the key as "Bearer demo-b": it is free.
Ctrl-C stops the service.`
}

/** The outbox relay, on PostgreSQL. */
import type { Figures } from '../report/results.ts'
import type { Context, Line } from '../run/context.ts'

export async function relayLines(context: Context): Promise<Line[]> {
  const { messages, singleMessages } = context.scale
  const places = await context.servers.places('postgres')
  const program = await context.start('relay', { places }, 'relay: PostgreSQL')
  return [
    {
      id: 'relay.postgres.rate',
      group: 'relay',
      subject: 'one relay, PostgreSQL',
      what: 'messages',
      load: `${messages} waiting`,
      note: 'handlers that do nothing; each settlement is recorded',
      measure: async () => (await program.call('rate', { messages })) as Figures,
    },
    {
      id: 'relay.postgres.latency',
      group: 'relay',
      subject: 'one relay, PostgreSQL',
      what: 'from add to the handler',
      load: 'idle',
      note: 'includes the transaction that adds the message',
      measure: async () => (await program.call('latency', { messages: singleMessages })) as Figures,
    },
  ]
}

import { describe, expect, it } from 'vitest'
import { Client, gate, turns } from '../adapters/run-express.ts'
import { SERVERS, replyWithPayment, servePayments } from './payments-api.ts'
import { replies, wireRequest, type WireReply } from './wire.ts'

// Connections of careless, slow and old clients.

const KEY = 'Idempotency-Key: "order-1"'

const isReplay = ({ headers }: WireReply) => headers.get('idempotent-replayed') === 'true'
const runOf = ({ body }: WireReply) => (JSON.parse(body) as { readonly run?: number }).run
const codeOf = ({ body }: WireReply) => (JSON.parse(body) as { readonly code?: string }).code

/** A handler that runs until it is released. */
function held() {
  const [entered, opened] = [gate(), gate()]
  const during = () => {
    entered.open()
    return opened.passed
  }
  return { during, entered: entered.passed, finish: opened.open }
}

describe.each(SERVERS)('%s:', (_name, mount) => {
  it('a retry over the same connection gets the first reply', async () => {
    const { server, runs } = await servePayments({ mount })
    const client = await Client.connect(server.port)
    for (let count = 1; count <= 3; count++) {
      client.socket.write(wireRequest([KEY]))
      await replies(client, count)
    }
    const all = await replies(client, 3)
    expect(all.map(({ status, body }) => [status, body])).toEqual(
      all.map(() => [201, all[0]!.body]),
    )
    expect(all.map(isReplay)).toEqual([false, true, true])
    expect(runs()).toBe(1)
  })

  it('duplicates in one packet are answered in order, and the work runs once', async () => {
    const { server, runs, left, holdNext } = await servePayments({ mount })
    // The second is answered while the first still runs, so its reply is queued behind the first.
    holdNext(() => arrivedBoth.passed)
    const arrivedBoth = gate()
    const client = await Client.connect(server.port)
    client.socket.write(Buffer.concat([wireRequest([KEY]), wireRequest([KEY])]))
    await turns()
    arrivedBoth.open()
    const [first, second] = await replies(client, 2)
    expect([first!.status, runOf(first!)]).toEqual([201, 1])
    expect([second!.status, codeOf(second!)]).toEqual([409, 'idempotency_key_in_progress'])
    await left(409)
    client.socket.write(wireRequest([KEY]))
    const third = (await replies(client, 3))[2]!
    expect([third.body, isReplay(third)]).toEqual([first!.body, true])
    expect(runs()).toBe(1)
  })

  it('duplicates in one packet can wait for the reply of the first', async () => {
    const options = { whileInProgress: { waitMs: 10_000 } } as const
    const { server, runs } = await servePayments({ mount, options })
    const client = await Client.connect(server.port)
    client.socket.write(Buffer.concat(Array.from({ length: 5 }, () => wireRequest([KEY]))))
    const all = await replies(client, 5)
    expect(new Set(all.map(({ body }) => body))).toEqual(new Set([all[0]!.body]))
    expect(all.map(isReplay)).toEqual([false, true, true, true, true])
    expect(runs()).toBe(1)
  })

  // The first reply is not sent yet, so the others have no socket when the client disconnects.
  it('a client that disconnects before its queued reply is sent changes nothing', async () => {
    const opened = gate()
    const { server, engine, runs, arrived } = await servePayments({
      mount,
      work: async (res, run) => {
        await opened.passed
        replyWithPayment(res, run)
      },
    })
    const keys = ['a', 'b', 'c'].map((key) => `Idempotency-Key: ${key}`)
    const client = await Client.connect(server.port)
    const gone = new Promise<void>((resolve) => {
      server.server.once('request', (req) => req.socket.once('close', resolve))
    })
    client.socket.write(Buffer.concat(keys.map((key) => wireRequest([key]))))
    await arrived(keys.length)
    await turns()
    client.cut()
    await gone
    opened.open()
    await turns()
    expect(await engine.list({ state: 'completed' })).toHaveLength(keys.length)

    const retrying = await Client.connect(server.port)
    retrying.socket.write(Buffer.concat(keys.map((key) => wireRequest([key]))))
    const all = await replies(retrying, keys.length)
    expect(all.map((reply) => [reply.status, isReplay(reply)])).toEqual(keys.map(() => [201, true]))
    expect(runs()).toBe(keys.length)
  })

  it('different requests in the same packet are handled separately', async () => {
    const { server, runs } = await servePayments({ mount })
    const client = await Client.connect(server.port)
    const packet = [
      wireRequest([KEY]),
      wireRequest(['Idempotency-Key: order-2']),
      wireRequest([KEY], { body: '{"amount":200}' }),
      wireRequest([]),
    ]
    client.socket.write(Buffer.concat(packet))
    const all = await replies(client, 4)
    expect(all.map(({ status }) => status)).toEqual([201, 201, 422, 400])
    expect(all.slice(0, 2).map(runOf)).toEqual([1, 2])
    expect(runs()).toBe(2)
  })

  it('the body of a refused request is skipped, and the next request is parsed', async () => {
    const { server, runs } = await servePayments({ mount })
    const client = await Client.connect(server.port)
    client.socket.write(wireRequest([], { body: 'x'.repeat(50_000) }))
    expect((await replies(client, 1))[0]!.status).toBe(400)
    client.socket.write(wireRequest([KEY]))
    expect((await replies(client, 2))[1]!.status).toBe(201)
    expect(runs()).toBe(1)
  })

  it('a request that arrives byte by byte is the same as one in a single packet', async () => {
    const { server, runs } = await servePayments({ mount })
    const slow = await Client.connect(server.port)
    slow.socket.setNoDelay(true)
    for (const byte of wireRequest([KEY])) {
      slow.socket.write(Buffer.of(byte))
      await turns(1)
    }
    const [first] = await replies(slow, 1)
    expect([first!.status, runOf(first!)]).toEqual([201, 1])
    const quick = await Client.connect(server.port)
    quick.socket.write(wireRequest([KEY]))
    const [again] = await replies(quick, 1)
    expect([again!.body, isReplay(again!)]).toEqual([first!.body, true])
    expect(runs()).toBe(1)
  })

  // The key is claimed when the body is complete, so a slow client does not block other requests.
  it('an unfinished upload holds no key, and is a duplicate when it arrives late', async () => {
    const { server, runs, arrived } = await servePayments({ mount })
    const slow = await Client.connect(server.port)
    const bytes = wireRequest([KEY])
    slow.socket.write(bytes.subarray(0, -1))
    await arrived(1)
    const quick = await Client.connect(server.port)
    quick.socket.write(bytes)
    const [first] = await replies(quick, 1)
    expect([first!.status, isReplay(first!)]).toEqual([201, false])
    slow.socket.write(bytes.subarray(-1))
    const [late] = await replies(slow, 1)
    expect([late!.body, isReplay(late!)]).toEqual([first!.body, true])
    expect(runs()).toBe(1)
  })

  it('an upload that breaks off runs nothing, and leaves its key free', async () => {
    const { server, runs, arrived } = await servePayments({ mount })
    const broken = await Client.connect(server.port)
    broken.socket.write(wireRequest([KEY]).subarray(0, -1))
    await arrived(1)
    broken.cut()
    await turns()
    expect(runs()).toBe(0)
    const client = await Client.connect(server.port)
    client.socket.write(wireRequest([KEY], { body: '{"amount":7}' }))
    expect((await replies(client, 1))[0]!.status).toBe(201)
    expect(runs()).toBe(1)
  })

  it('one of many concurrent duplicates on different connections runs', async () => {
    const { server, runs, statuses, holdNext } = await servePayments({ mount })
    const { during, entered, finish } = held()
    holdNext(during)
    const clients = await Promise.all(Array.from({ length: 8 }, () => Client.connect(server.port)))
    for (const { socket } of clients) socket.write(wireRequest([KEY]))
    await entered
    while (statuses.length < clients.length - 1) await turns(1)
    finish()
    const all = (await Promise.all(clients.map((client) => replies(client, 1)))).flat()
    const [ran, ...others] = all.toSorted((a, b) => a.status - b.status)
    expect(ran!.status).toBe(201)
    expect(others.map((reply) => [reply.status, codeOf(reply)])).toEqual(
      others.map(() => [409, 'idempotency_key_in_progress']),
    )
    expect(others).toHaveLength(7)
    expect(runs()).toBe(1)
  })

  it('of different concurrent requests under one key, the loser gets a mismatch', async () => {
    const { server, runs, holdNext } = await servePayments({ mount })
    const { during, entered, finish } = held()
    holdNext(during)
    const [winner, other] = [await Client.connect(server.port), await Client.connect(server.port)]
    winner.socket.write(wireRequest([KEY]))
    await entered
    other.socket.write(wireRequest([KEY], { body: '{"amount":200}' }))
    const [refused] = await replies(other, 1)
    expect([refused!.status, codeOf(refused!)]).toEqual([
      422,
      'idempotency_key_reused_with_different_payload',
    ])
    finish()
    expect((await replies(winner, 1))[0]!.status).toBe(201)
    expect(runs()).toBe(1)
  })

  it('a client that uses HTTP/1.0 gets the reply and its replay', async () => {
    const { server, runs } = await servePayments({ mount })
    const answers: WireReply[] = []
    for (let count = 0; count < 2; count++) {
      const client = await Client.connect(server.port)
      client.socket.write(wireRequest([KEY], { version: '1.0' }))
      await client.closed()
      answers.push(...(await replies(client, 1)))
    }
    expect(answers.map(({ status, body }) => [status, body])).toEqual(
      answers.map(() => [201, answers[0]!.body]),
    )
    expect(runOf(answers[0]!)).toBe(1)
    expect(answers.map(isReplay)).toEqual([false, true])
    expect(runs()).toBe(1)
  })

  it('a key is the same over HTTP/1.0 and HTTP/1.1', async () => {
    const { server, runs } = await servePayments({ mount })
    const bodies: string[] = []
    for (const version of ['1.0', '1.1']) {
      const client = await Client.connect(server.port)
      client.socket.write(wireRequest([KEY, 'Connection: keep-alive'], { version }))
      bodies.push((await replies(client, 1))[0]!.body)
    }
    expect(bodies).toEqual([expect.stringContaining('"run":1'), bodies[0]])
    expect(runs()).toBe(1)
  })
})

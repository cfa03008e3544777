/**
 * Loaded into a process before its program (`node --import`): lets its wall clock be wrong. The
 * program knows nothing of it. Told by a message `{ shiftMs }`; the clock that only ever grows, and
 * timers, go on as they did.
 */
const RealDate = Date
let shiftMs = 0

const now = (): number => RealDate.now() + shiftMs

globalThis.Date = new Proxy(RealDate, {
  construct: (target, args: unknown[], made) =>
    Reflect.construct(target, args.length === 0 ? [now()] : args, made) as Date,
  apply: () => new RealDate(now()).toString(),
  get: (target, name, receiver) => (name === 'now' ? now : Reflect.get(target, name, receiver)),
})

if (process.channel !== undefined) {
  process.on('message', (message: { shiftMs?: number }) => {
    if (typeof message.shiftMs === 'number') shiftMs = message.shiftMs
    process.send?.({ shiftedMs: shiftMs })
  })
  // Nobody is left behind by whoever started it, however that one ended.
  process.once('disconnect', () => process.kill(process.pid, 'SIGKILL'))
  process.channel.unref()
}

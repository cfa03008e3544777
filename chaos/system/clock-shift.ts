/**
 * Preloaded into a process (`node --import`): shifts its wall clock on a message `{ shiftMs }`. The
 * program, its monotonic clock and its timers are unchanged.
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
  // The process ends with its parent, regardless of how the parent ended.
  process.once('disconnect', () => process.kill(process.pid, 'SIGKILL'))
  process.channel.unref()
}

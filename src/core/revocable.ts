/** What ends the connection, or hands it to somebody else, is the store's to do. */
const WITHHELD: readonly (string | symbol)[] = ['release', 'end', 'begin', 'reserve', 'close']

/**
 * The driver's own object, until the work ends: a handler that goes on after that would write into
 * the transaction of somebody else.
 */
export function revocable(target: object, refuse: () => never): { tx: object; revoke: () => void } {
  let isRevoked = false
  const check = () => {
    if (isRevoked) refuse()
  }
  const tx = new Proxy(target, {
    get(_, name) {
      check()
      if (WITHHELD.includes(name)) return undefined
      const value: unknown = Reflect.get(target, name, target)
      return typeof value === 'function' ? bound(value as Callable, target, check) : value
    },
    apply(callee, self, values: unknown[]) {
      check()
      return Reflect.apply(callee as Callable, self, values)
    },
  })
  return {
    tx,
    revoke: () => {
      isRevoked = true
    },
  }
}

type Callable = (...values: unknown[]) => unknown

/** Checked again when it is called: it may have been put aside. Its properties stay in reach. */
function bound(method: Callable, target: object, check: () => void): Callable {
  return new Proxy(method, {
    apply(callee, _, values: unknown[]) {
      check()
      return Reflect.apply(callee, target, values)
    },
  })
}

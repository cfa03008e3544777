/** Methods that manage the connection: only the store may end, release or reserve it. */
const WITHHELD: readonly (string | symbol)[] = ['release', 'end', 'begin', 'reserve', 'close']

/**
 * Passes on the driver's own object until the work ends. A handler that still uses it afterwards
 * would write into the next transaction on the same connection.
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

/** Checks again at the call, because the work may keep the method. Keeps its properties. */
function bound(method: Callable, target: object, check: () => void): Callable {
  return new Proxy(method, {
    apply(callee, _, values: unknown[]) {
      check()
      return Reflect.apply(callee, target, values)
    },
  })
}

const reconciled = new WeakSet<object>()

/** A reconciler was made for this engine: what is `unknown` there is looked into. */
export function markReconciled(engine: object): void {
  reconciled.add(engine)
}

export function isReconciled(engine: object): boolean {
  return reconciled.has(engine)
}

import { cachedStore, memoryCache } from '../../../src/stores/cached/index.ts'
import { runDurableCases, type OpenDurableStore } from '../run-durable-cases.ts'
import { openDurableFile } from '../sqlite/durable/setup.ts'

const open = openDurableFile({ history: true })

runDurableCases({
  name: 'memory cache over a sqlite store',
  open: (clock) => {
    const opened = open(clock)
    const store = cachedStore({ durable: opened.store, cache: memoryCache({ clock }), clock })
    return { ...opened, store: store as OpenDurableStore['store'] }
  },
})

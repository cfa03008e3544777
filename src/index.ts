export { memoryStore } from './stores/memory/memory-store.ts'

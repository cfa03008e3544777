import { runDurableCases } from './run-durable-cases.ts'
import { openDurableFile } from './sqlite-durable-setup.ts'

runDurableCases({
  name: 'sqlite',
  open: openDurableFile(),
  without: { history: 'it was not asked for' },
})

runDurableCases({
  name: 'sqlite with a history, in table Other_table2',
  open: openDurableFile({ table: 'Other_table2', history: true }),
})

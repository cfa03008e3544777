import { runDurableCases } from '../../run-durable-cases.ts'
import { openDurableFile } from './setup.ts'

runDurableCases({
  name: 'sqlite',
  open: openDurableFile(),
  without: { history: 'the history option is off' },
})

runDurableCases({
  name: 'sqlite with a history, in table Other_table2',
  open: openDurableFile({ table: 'Other_table2', history: true }),
})

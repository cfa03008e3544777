import { it } from 'vitest'
import { openDurableFile } from './setup.ts'
import { playDurableHistories } from '../../play-durable-histories.ts'

it(
  'random histories of durable calls have the outcomes of a simple model',
  { timeout: 120_000 },
  () => playDurableHistories({ histories: 12, steps: 250, open: openDurableFile() }),
)

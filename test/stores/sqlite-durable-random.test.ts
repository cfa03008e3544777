import { it } from 'vitest'
import { openDurableFile } from './sqlite-durable-setup.ts'
import { playDurableHistories } from './play-durable-histories.ts'

it('does what a simple model of it does, whatever comes', { timeout: 120_000 }, () =>
  playDurableHistories({ histories: 12, steps: 250, open: openDurableFile() }),
)

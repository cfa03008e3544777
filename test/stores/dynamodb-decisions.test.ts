import { it } from 'vitest'
import { useDynamodb } from './dynamodb-setup.ts'
import { playHistories } from './play-histories.ts'

const setup = useDynamodb()

it.each([false, true])(
  'decides like every other store, whatever happens in whichever order, history: %s',
  async (history) => {
    await playHistories({
      count: 1,
      open: async (clock) => (await setup()).open({ clock, history }),
      // Whoever sees a lease counts it: its end on record is what its holder was told.
      ignored: ['leaseUntil'],
      // A lease goes by a clock that nobody sets, and would end at another moment.
      jumps: false,
    })
  },
)

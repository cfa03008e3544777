import { it } from 'vitest'
import { useDynamodb } from './setup.ts'
import { playHistories } from '../play-histories.ts'

const setup = useDynamodb()

it.each([false, true])(
  'decides like the in-memory store in random histories (history: %s)',
  async (history) => {
    await playHistories({
      count: 1,
      open: async (clock) => (await setup()).open({ clock, history }),
      // Each process counts a lease itself. The stored end is the one that the holder got.
      ignored: ['leaseUntil'],
      // Leases use the monotonic clock, which does not jump, so they would end at another time.
      jumps: false,
    })
  },
)

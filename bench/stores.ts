/**
 * The ratios the stores are held to, on real servers that this script starts and ends itself.
 *
 *   npm run bench:stores              everything: about ten minutes, most of it filling tables
 *   npm run bench:stores -- --quick   the throughput alone: about two minutes
 */
import { createEngine, type Engine } from '../src/core/engine.ts'
import { compete, IN_FLIGHT, oneByOne, pairsPerSecond, type Contest } from './contest.ts'
import { growth, reaping } from './postgres-growth.ts'
import { bareRedis, lockSplit, throughCache } from './redis-contests.ts'
import { openServers, type Servers } from './servers.ts'

const ROUNDS = { rounds: 7, roundMs: 1_000 }
const CONNECTIONS = 10

async function main(): Promise<void> {
  const isQuick = process.argv.includes('--quick')
  const servers = await openServers(CONNECTIONS)
  const missed: string[] = []
  try {
    const contests: (() => Promise<Contest> | Contest)[] = [
      () => bareRedis(servers),
      () => againstRedis(servers),
      () => batches(servers.postgres, 'PostgreSQL', 5),
      () => throughCache(servers),
      () => lockSplit(servers),
      // Behind the others: it goes on purging for a while afterwards.
      () => batches(servers.mariadb, 'MariaDB', 4),
    ]
    if (!isQuick)
      contests.push(
        () => growth(servers),
        () => reaping(servers),
      )
    for (const open of contests) {
      const contest = await open()
      if (!(await compete(contest, ROUNDS))) missed.push(contest.name)
    }
  } finally {
    await servers.close()
  }
  for (const name of missed) console.log(`\nMISSED: ${name}`)
  process.exitCode = missed.length === 0 ? 0 : 1
}

/** The same store and the same pool, in batches and with a statement for every row. */
function batches(engine: Engine, name: string, target: number): Contest {
  const single = createEngine({ store: oneByOne(engine.store, CONNECTIONS) })
  return {
    name: `${name}, ${IN_FLIGHT} in flight: pairs/s in batches against one statement a call`,
    target: { atLeast: target },
    ours: (ms) => pairsPerSecond(engine, ms),
    theirs: (ms) => pairsPerSecond(single, ms),
  }
}

function againstRedis({ postgres, redis }: Servers): Contest {
  return {
    name: `PostgreSQL against Redis, ${IN_FLIGHT} in flight: pairs/s`,
    target: { atLeast: 0.5 },
    ours: (ms) => pairsPerSecond(postgres, ms),
    theirs: (ms) => pairsPerSecond(redis, ms),
  }
}

await main()

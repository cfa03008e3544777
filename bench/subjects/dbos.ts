/**
 * DBOS: a workflow of one step, started under the key as its id, and awaited.
 *
 * Left out: only the id decides, no fingerprint is compared, and there is no tenant. A step is
 * recorded after it has run, so a crash between the two runs it again. Beyond the others: it
 * resumes workflows after a crash automatically.
 */
import type { Places } from '../run/contract.ts'
import type { Counter, Subject } from '../run/subject.ts'
import { REPLY, REQUEST } from '../run/work.ts'
import { loadPeer } from './load-peer.ts'
import { addressOf } from './stores.ts'

type Pay = (input: typeof REQUEST) => Promise<unknown>

interface DbosModule {
  readonly DBOS: {
    setConfig(config: { name: string; systemDatabaseUrl: string; logLevel: string }): void
    registerWorkflow(workflow: Pay, options: { name: string }): Pay
    runStep(step: () => Promise<unknown>, options: { name: string }): Promise<unknown>
    startWorkflow(
      workflow: Pay,
      options: { workflowID: string },
    ): (input: typeof REQUEST) => Promise<{ getResult(): Promise<unknown> }>
    launch(): Promise<void>
    shutdown(): Promise<void>
  }
}

export async function openDbos(places: Places, counter: Counter): Promise<Subject> {
  const { DBOS } = await loadPeer<DbosModule>('@dbos-inc/dbos-sdk')
  const systemDatabaseUrl = addressOf(places, 'postgres')
  DBOS.setConfig({ name: 'bench', systemDatabaseUrl, logLevel: 'error' })
  const charge = async () => {
    counter.runs++
    return REPLY
  }
  const pay = DBOS.registerWorkflow(() => DBOS.runStep(charge, { name: 'charge' }), {
    name: 'pay',
  })
  await DBOS.launch()
  return {
    async run(key) {
      const handle = await DBOS.startWorkflow(pay, { workflowID: key })(REQUEST)
      return handle.getResult()
    },
    close: () => DBOS.shutdown(),
  }
}

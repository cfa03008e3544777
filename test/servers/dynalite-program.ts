/**
 * The process that `dynalite.ts` starts. By default dynalite does not return the existing item of a
 * refused write, as DynamoDB does. With `--returnsItems` it does.
 */
import { createRequire } from 'node:module'

type Failure = { body: Record<string, unknown> } | null | undefined

interface Internals {
  checkConditional: (data: Readonly<Record<string, unknown>>, item: unknown) => Failure
}

const load = createRequire(import.meta.url)

function returnItems(): void {
  const option = 'ReturnValuesOnConditionCheckFailure'
  for (const call of ['putItem', 'deleteItem']) {
    // Options that are not listed here are dropped from the input.
    load(`dynalite/validations/${call}`).types[option] = { type: 'String' }
  }
  const internals = load('dynalite/db') as Internals
  const { checkConditional } = internals
  internals.checkConditional = (data, item) => {
    const failure = checkConditional(data, item)
    if (failure?.body !== undefined && data[option] === 'ALL_OLD' && item !== undefined) {
      failure.body['Item'] = item
    }
    return failure
  }
}

if (process.argv.includes('--returnsItems')) returnItems()
load('dynalite/cli.js')

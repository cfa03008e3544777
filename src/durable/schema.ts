import { InvalidRequestError } from '../core/errors.ts'

/**
 * A Standard Schema (version 1), as zod, valibot, arktype and others make them. Described here, so
 * that no package is needed for it.
 */
export interface Schema<Output> {
  readonly '~standard': {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>
  }
}

type SchemaResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly SchemaIssue[] }

interface SchemaIssue {
  readonly message: string
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined
}

/** Faults named in a message; more would hide the first. */
const ISSUES_SHOWN = 5

/** The value as the schema gives it back; as it is where there is no schema. */
export async function checkSchema<Output>(
  where: string,
  schema: Schema<Output> | undefined,
  value: unknown,
): Promise<Output> {
  if (schema === undefined) return value as Output
  const result = await schema['~standard'].validate(value)
  if (result.issues === undefined) return result.value
  const shown = result.issues.slice(0, ISSUES_SHOWN).map(toText).join('; ')
  throw new InvalidRequestError(`${where} is not what its schema asks for: ${shown}`)
}

function toText({ message, path }: SchemaIssue): string {
  if (path === undefined || path.length === 0) return message
  const keys = path.map((part) => String(typeof part === 'object' ? part.key : part))
  return `${keys.join('.')}: ${message}`
}

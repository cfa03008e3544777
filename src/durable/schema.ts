import { InvalidOptionsError, InvalidRequestError } from '../core/errors.ts'
import { describe } from '../core/options.ts'

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

/** A schema that is none would fail every value, or none. */
export function checkSchemaOption(where: string, schema: unknown): void {
  if (schema === undefined) return
  const standard = (schema as Partial<Schema<unknown>> | null)?.['~standard']
  if (typeof standard?.validate === 'function') return
  throw new InvalidOptionsError(
    `${where} must be a Standard Schema (zod from 3.24, valibot, ArkType; ajvSchema() makes one ` +
      `of a function of ajv's), got ${describe(schema)}`,
  )
}

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

/** A function that ajv has compiled: `ajv.compile(jsonSchema)`. */
export interface AjvValidate<Output> {
  (data: unknown): data is Output
  errors?: readonly { readonly instancePath: string; readonly message?: string }[] | null
}

/**
 * Makes a schema of a function that ajv has compiled.
 *
 * @example
 * ```ts
 * const input = ajvSchema(ajv.compile<Payment>(paymentJsonSchema))
 * ```
 */
export function ajvSchema<Output>(validate: AjvValidate<Output>): Schema<Output> {
  const check = (value: unknown): SchemaResult<Output> => {
    if (validate(value)) return { value }
    const issues = (validate.errors ?? []).map(({ instancePath, message = 'is wrong' }) => ({
      message,
      path: instancePath.split('/').filter((part) => part !== ''),
    }))
    return { issues }
  }
  return { '~standard': { version: 1, vendor: 'ajv', validate: check } }
}

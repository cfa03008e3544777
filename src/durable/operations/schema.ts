import { InvalidOptionsError, InvalidRequestError } from '../../core/errors.ts'
import { describe } from '../../core/options.ts'

/**
 * A Standard Schema (version 1), as made by zod, valibot, ArkType and others. Described here, so
 * that no package has to be installed for it.
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

/** Issues in an error message; more would hide the first. */
const ISSUES_SHOWN = 5

/** An invalid schema would reject every value or accept every value. */
export function checkSchemaOption(
  where: string,
  schema: Partial<Schema<unknown>> | undefined,
): void {
  if (schema === undefined || typeof schema?.['~standard']?.validate === 'function') return
  throw new InvalidOptionsError(
    `${where} must be a Standard Schema (zod from 3.24, valibot, ArkType; or ajvSchema() for ` +
      `ajv), got ${describe(schema)}`,
  )
}

/** The output of the schema, or the value itself without a schema. */
export async function checkSchema<Output>(
  where: string,
  schema: Schema<Output> | undefined,
  value: unknown,
): Promise<Output> {
  if (schema === undefined) return value as Output
  const result = await schema['~standard'].validate(value)
  if (result.issues === undefined) return result.value
  const shown = result.issues.slice(0, ISSUES_SHOWN).map(toText).join('; ')
  throw new InvalidRequestError(`${where} does not match its schema: ${shown}`)
}

function toText({ message, path }: SchemaIssue): string {
  if (path === undefined || path.length === 0) return message
  const keys = path.map((part) => String(typeof part === 'object' ? part.key : part))
  return `${keys.join('.')}: ${message}`
}

/** A validate function from `ajv.compile(jsonSchema)`. */
export interface AjvValidate<Output> {
  (data: unknown): data is Output
  errors?: readonly { readonly instancePath: string; readonly message?: string }[] | null
}

/**
 * Makes a Standard Schema from a function that ajv has compiled.
 *
 * @example
 * ```ts
 * const input = ajvSchema(ajv.compile<Payment>(paymentJsonSchema))
 * ```
 */
export function ajvSchema<Output>(validate: AjvValidate<Output>): Schema<Output> {
  const check = (value: unknown): SchemaResult<Output> => {
    if (validate(value)) return { value }
    const issues = (validate.errors ?? []).map(({ instancePath, message = 'is invalid' }) => ({
      message,
      path: instancePath.split('/').filter((part) => part !== ''),
    }))
    return { issues }
  }
  return { '~standard': { version: 1, vendor: 'ajv', validate: check } }
}

import { expect, it } from 'vitest'
import { fieldOf } from '../../../src/http/guard/body-field.ts'

const bytes = (text: string) => ({ kind: 'bytes', bytes: Buffer.from(text) }) as const

it.each([
  ['{"id":"k"}', 'id', 'k'],
  ['{"meta":{"request":{"id":"k"}}}', 'meta.request.id', 'k'],
  ['\ufeff{"id":"k"}', 'id', 'k'],
  ['{"id":"k","id":"l"}', 'id', 'l'],
  ['{"id":42}', 'id', 42],
  ['{"id":null}', 'id', undefined],
  ['{"id":{}}', 'id', {}],
  ['{}', 'id', undefined],
  ['{}', 'constructor', undefined],
  ['{}', '__proto__.x', undefined],
  ['["k"]', '0', 'k'],
  ['"id"', 'length', undefined],
  ['{"id":', 'id', undefined],
  ['', 'id', undefined],
])('of the JSON %s the field %s is %j', (text, path, value) => {
  expect(fieldOf(bytes(text), 'application/json; charset=utf-8', path)).toEqual(value)
})

it.each([
  ['id=k&a=1', 'id', 'k'],
  ['id=a+b%26', 'id', 'a b&'],
  ['id=', 'id', ''],
  ['a=1', 'id', undefined],
  ['id=k&id=l', 'id', ['k', 'l']],
  ['__proto__=x', '__proto__', 'x'],
])('of the form %s the field %s is %j', (text, path, value) => {
  expect(fieldOf(bytes(text), 'application/x-www-form-urlencoded', path)).toEqual(value)
})

it('a field is found regardless of the member names of earlier bodies', () => {
  // V8 confuses the second name with the first when the objects begin alike.
  fieldOf(bytes('{"order":5,"cl\\\\":"x"}'), 'application/json', 'clé')
  JSON.parse('{"order":5,"cl\\\\":"x"}')
  expect(fieldOf(bytes('{"order":5,"cl\\u00e9":"k"}'), 'application/json', 'clé')).toBe('k')
})

it('a field is read from a body that a parser has already parsed', () => {
  const body = { kind: 'value', value: { meta: { id: 'k' } } } as const
  expect(fieldOf(body, 'text/odd', 'meta.id')).toBe('k')
  expect(fieldOf({ kind: 'value', value: undefined }, '', 'id')).toBeUndefined()
})

it('a field is absent without a body, or in a body without fields', () => {
  expect(fieldOf({ kind: 'none' }, 'application/json', 'id')).toBeUndefined()
  const form = '--x\r\nContent-Disposition: form-data; name="id"\r\n\r\nk\r\n--x--'
  expect(fieldOf(bytes(form), 'multipart/form-data; boundary=x', 'id')).toBeUndefined()
})

/**
 * Removes the names of parameters from a route template, so that a deploy that renames one keeps
 * its keys. Of `:id`, `*rest` and `:"a name"`, only the colon or star stays. Escaped characters
 * do not change.
 */
export function withoutNames(template: string): string {
  if (!template.includes(':') && !template.includes('*')) return template
  return template.replace(PARAMETER, (text, mark?: string) => mark ?? text)
}

const PARAMETER = /\\.|([:*])(?:[\p{ID_Start}$_][\p{ID_Continue}$]*|"[^"]*")/gu

/**
 * Lower-cases a template for a router that ignores case. Escaped characters and patterns stay,
 * because case has a meaning in them: `\D` is not `\d`.
 */
export function lowerCase(template: string): string {
  // The fast way for paths of requests, which have neither.
  if (!template.includes('\\') && !template.includes('(')) return template.toLowerCase()
  const parts = template.split(VERBATIM)
  return parts.map((part, index) => (index % 2 === 0 ? part.toLowerCase() : part)).join('')
}

/** Escaped characters, and patterns in parentheses, which older routers support. */
const VERBATIM = /(\\.|\((?:[^()\\]|\\.)*\))/u

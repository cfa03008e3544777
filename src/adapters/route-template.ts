/**
 * A template without the names of its parameters, so that renaming one at a deploy loses no key:
 * of `:id`, `*rest` and `:"a name"`, only the colon or star stays. What is escaped stays as it is.
 */
export function withoutNames(template: string): string {
  if (!template.includes(':') && !template.includes('*')) return template
  return template.replace(PARAMETER, (text, mark?: string) => mark ?? text)
}

const PARAMETER = /\\.|([:*])(?:[\p{ID_Start}$_][\p{ID_Continue}$]*|"[^"]*")/gu

/** The way a router reads it that takes no notice of case: what has a meaning by its case stays. */
export function lowerCase(template: string): string {
  // Paths have nothing of the kind, and every request has a path.
  if (!template.includes('\\') && !template.includes('(')) return template.toLowerCase()
  const parts = template.split(VERBATIM)
  return parts.map((part, index) => (index % 2 === 0 ? part.toLowerCase() : part)).join('')
}

/** What is escaped, and patterns of older routers. */
const VERBATIM = /(\\.|\((?:[^()\\]|\\.)*\))/u

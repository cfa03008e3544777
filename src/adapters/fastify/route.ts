/** The name of a Fastify route. */

/**
 * The template without parameter names, so that renaming a parameter loses no key: `/users/:id`
 * becomes `/users/:`. Patterns of parameters stay.
 */
export function eraseNames(template: string): string {
  let erased = ''
  let at = 0
  while (at < template.length) {
    // Fastify writes a literal colon as two colons.
    if (template.startsWith('::', at)) {
      erased += '::'
      at += 2
    } else if (template[at] === ':') {
      const name = /^:[^/.(-]*/.exec(template.slice(at))![0]
      erased += name.endsWith('?') ? ':?' : ':'
      const end = patternEnd(template, at + name.length)
      erased += template.slice(at + name.length, end)
      at = end
    } else {
      erased += template[at]!
      at++
    }
  }
  return erased
}

/** The end of the pattern in brackets that begins at `start`; `start` if there is none. */
function patternEnd(template: string, start: number): number {
  if (template[start] !== '(') return start
  let depth = 0
  for (let at = start; at < template.length; at++) {
    if (template[at] === '\\') at++
    else if (template[at] === '(') depth++
    else if (template[at] === ')' && --depth === 0) return at + 1
  }
  return template.length
}

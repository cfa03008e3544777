/** Reports errors of streamed replies to the guard: Fastify only closes the connection. */

type Report = (error: unknown) => void

/** Returns the payload with errors reported. A payload that is not a stream is unchanged. */
export function watchPayload(payload: unknown, report: Report): unknown {
  if (typeof payload !== 'object' || payload === null) return payload
  if (isNodeStream(payload)) {
    payload.once('error', report)
    return payload
  }
  if (isWebStream(payload)) return payload.locked ? payload : watchWebStream(payload, report)
  if (isResponse(payload) && payload.body !== null && !payload.bodyUsed) {
    const { status, headers } = payload
    return new Response(watchWebStream(payload.body, report), { status, headers })
  }
  return payload
}

/** Reads a chunk only when the consumer reads one. */
function watchWebStream(source: ReadableStream, report: Report): ReadableStream {
  const reader = source.getReader() as ReadableStreamDefaultReader<unknown>
  const pull = async (controller: ReadableStreamDefaultController<unknown>) => {
    try {
      const { done, value } = await reader.read()
      if (done) controller.close()
      else controller.enqueue(value)
    } catch (error) {
      report(error)
      controller.error(error)
    }
  }
  const cancel = (reason: unknown) => reader.cancel(reason)
  return new ReadableStream<unknown>({ pull, cancel }, { highWaterMark: 0 })
}

interface NodeStream {
  once(event: 'error', listener: Report): unknown
}

function isNodeStream(payload: object): payload is NodeStream {
  return 'pipe' in payload && typeof payload.pipe === 'function' && 'once' in payload
}

function isWebStream(payload: object): payload is ReadableStream {
  return 'getReader' in payload && typeof payload.getReader === 'function'
}

/** Checks the tag, as Fastify does, so that responses of another fetch library count too. */
function isResponse(payload: object): payload is Response {
  return Object.prototype.toString.call(payload) === '[object Response]'
}

// A client behind a pipe: one JSON request a line on stdin, one JSON answer a line on stdout, so that one process
// serves a whole test run. Bytes travel as base64. A refusal is answered with its Kafka error code.
import { createInterface } from 'node:readline'

const lines = createInterface({ input: process.stdin, crlfDelay: Infinity })[Symbol.asyncIterator]()

/** The next line of stdin; an operation that waits for the test reads one itself. */
export const nextLine = async () => {
  const { value, done } = await lines.next()
  return done ? null : value
}

export const say = message => process.stdout.write(`${JSON.stringify(message)}\n`)

export const bytes = text => (text === null || text === undefined ? null : Buffer.from(text, 'base64'))

export const text = content => (content === null || content === undefined ? null : content.toString('base64'))

// Libraries wrap the broker's refusal: in a cause, in a list, or in one entry for each partition.
const wrapped = error => [
  error.cause,
  error.originalError,
  ...(error.errors ?? []),
  ...(error.partitions ?? []).map(partition => partition.error)
]

/** The errors that lie in an error, from outside to inside. */
const all = error => (error instanceof Error ? [error, ...wrapped(error).flatMap(all)] : [])

/** Answers requests until stdin ends; `codeOf` reads the protocol's error number off one of the client's errors. */
export async function serve (operations, codeOf) {
  for (let line = await nextLine(); line !== null; line = await nextLine()) {
    const request = JSON.parse(line)
    try {
      if (!Object.hasOwn(operations, request.op)) {
        throw new TypeError(`no operation ${request.op}`)
      }
      say({ result: (await operations[request.op](request)) ?? null })
    } catch (error) {
      const errors = all(error)
      const code = errors.map(codeOf).find(code => Number.isInteger(code))
      say({ error: error.name, message: errors.map(one => one.message).join(' <- '), code: code ?? null })
    }
  }
  // Nothing that a client left open may hold the process.
  process.exit(0)
}

/** The numbers from 0 as batches for `send`, in turn to each partition; see tests/support/node_client.py. */
export async function sendNumbered ({ count, partitions, batch, announce_at: announceAt, hold_from: holdFrom }, send) {
  let acknowledged = 0
  for (let first = 0; first < count; first += batch) {
    if (first === holdFrom) {
      await nextLine()
    }
    const numbers = Array.from({ length: Math.min(batch, count - first) }, (_, index) => first + index)
    await send(numbers.map(number => ({ value: Buffer.from(String(number)), partition: number % partitions })))
    acknowledged += numbers.length
    if (acknowledged === announceAt) {
      say({ event: 'running' })
    }
  }
  return acknowledged
}

/** Where each record went, if that can be told from the first offset of each partition. */
export function positions (records, baseOffsets) {
  const next = new Map(baseOffsets)
  if (records.some(record => !next.has(record.partition))) {
    return null
  }
  return records.map(({ partition }) => {
    const offset = next.get(partition)
    next.set(partition, offset + 1)
    return [partition, offset]
  })
}

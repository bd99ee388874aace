// What every member program of Node says: the lines of tests/support/group_member.py, until its input ends.

// The same clock as Python's time.monotonic() on Linux.
export const say = (event, fields = {}) =>
  process.stdout.write(`${JSON.stringify({ event, at: Number(process.hrtime.bigint()) / 1e9, ...fields })}\n`)

let ended = false

/** Whether the member has been told to leave. */
export const isOver = () => ended

/** Done when the member has been told to leave. */
export const over = new Promise(resolve => {
  process.stdin.on('end', () => {
    ended = true
    resolve()
  })
  process.stdin.resume()
})

/** Partitions as they are assigned and taken; a new assignment replaces what nobody announced the end of. */
export function ownership () {
  let owned = []
  const end = event => {
    if (owned.length > 0) {
      say(event, { partitions: owned })
    }
    owned = []
  }
  return {
    revoke: () => end('revoked'),
    assign: partitions => {
      // A join that was under way may still succeed while the client closes; nothing of it is read.
      if (ended) {
        return
      }
      end('lost')
      owned = partitions
      say('assigned', { partitions })
    }
  }
}

/** Records in the order they came, as topic, partition and offset, in runs of offsets that follow each other. */
export function sayProcessed (records) {
  const runs = []
  const latest = new Map()
  for (const [topic, partition, offset] of records) {
    const place = `${topic}:${partition}`
    const run = latest.get(place)
    if (run !== undefined && run[3] + 1 === offset) {
      run[3] = offset
    } else {
      latest.set(place, [topic, partition, offset, offset])
      runs.push(latest.get(place))
    }
  }
  if (runs.length > 0) {
    say('processed', { runs })
  }
}

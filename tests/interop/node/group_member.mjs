// A member of a consumer group, with kafkajs, that says what it is given and what it has processed, one JSON line
// each, until its input ends. Takes the settings and prints the lines of tests/support/group_member.py.
import { required } from './packages.mjs'

const { Kafka, logLevel } = required('kafkajs')

// The same clock as Python's time.monotonic() on Linux.
const say = (event, fields = {}) =>
  process.stdout.write(`${JSON.stringify({ event, at: Number(process.hrtime.bigint()) / 1e9, ...fields })}\n`)

let isOver = false
const over = new Promise(resolve => {
  process.stdin.on('end', () => {
    isOver = true
    resolve()
  })
  process.stdin.resume()
})

/** Partitions as they are assigned and taken; a new assignment replaces what nobody announced the end of. */
function ownership () {
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
      if (isOver) {
        return
      }
      end('lost')
      owned = partitions
      say('assigned', { partitions })
    }
  }
}

/** One batch of a partition in runs of offsets that follow each other. */
function sayProcessed (topic, partition, offsets) {
  const runs = []
  for (const offset of offsets) {
    const last = runs.at(-1)
    if (last !== undefined && last[3] + 1 === offset) {
      last[3] = offset
    } else {
      runs.push([topic, partition, offset, offset])
    }
  }
  say('processed', { runs })
}

async function run (settings) {
  const kafka = new Kafka({ clientId: 'member', brokers: [settings.bootstrap], logLevel: logLevel.ERROR })
  const consumer = kafka.consumer({ groupId: settings.group, metadataMaxAge: 1000, ...settings.config })
  const mine = ownership()
  consumer.on(consumer.events.REBALANCING, mine.revoke)
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) =>
    mine.assign(
      Object.entries(payload.memberAssignment).flatMap(([topic, partitions]) =>
        partitions.map(partition => [topic, partition])
      )
    )
  )
  await consumer.connect()
  await consumer.subscribe({
    topics: settings.topics.map(topic => (topic.startsWith('^') ? new RegExp(topic) : topic)),
    fromBeginning: true
  })
  await consumer.run({
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
      if (isOver || !isRunning() || isStale()) {
        return
      }
      sayProcessed(batch.topic, batch.partition, batch.messages.map(message => Number(message.offset)))
      // Said, so it may be committed, which the client does at the end of the batch.
      resolveOffset(batch.lastOffset())
      await heartbeat()
    }
  })
  await over
  say('closing')
  await consumer.disconnect()
}

await run(JSON.parse(process.argv[2]))
say('closed')
// Nothing that a client left open may hold the process.
process.exit(0)

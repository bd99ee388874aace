// A member of a consumer group, with @platformatic/kafka, that says what it is given and what it has processed, one
// JSON line each, until its input ends. Takes the settings and prints the lines of tests/support/group_member.py.
//
// The client goes on giving what it had fetched after the partition was taken away; see docs/findings.md. Everything
// it gives is processed here: what is skipped may never come again, as the stream's position has passed it.
import { isOver, over, ownership, say, sayProcessed } from './member_lines.mjs'
import { imported } from './packages.mjs'

const { Consumer } = await imported('@platformatic/kafka')

const ROUND_RECORDS = 500

const placesOf = assignments =>
  assignments.flatMap(({ topic, partitions }) => partitions.map(partition => [topic, partition]))

/** One round of work: said, and then asked to be committed. */
function work (messages, consumer) {
  sayProcessed(messages.map(({ topic, partition, offset }) => [topic, partition, Number(offset)]))
  const mine = new Set(placesOf(consumer.assignments ?? []).map(String))
  const latest = new Map(messages.map(message => [String([message.topic, message.partition]), message]))
  for (const [place, message] of latest) {
    if (mine.has(place)) {
      // Not waited for: when the client closes during a rebalance it neither keeps nor breaks this promise. Where the
      // commit fails the next owner reads the records again.
      message.commit().catch(() => {})
    }
  }
}

async function run (settings) {
  const consumer = new Consumer({
    clientId: 'member',
    bootstrapBrokers: [settings.bootstrap],
    groupId: settings.group,
    connectTimeout: 30_000,
    metadataMaxAge: 1000,
    maxWaitTime: 500,
    // A fleet in unrest rebalances more often in a row than the client tries to join by default.
    retries: 1000,
    retryDelay: 100,
    ...settings.config
  })
  const mine = ownership()
  consumer.on('consumer:group:rebalance', mine.revoke)
  consumer.on('consumer:group:join', ({ assignments }) => mine.assign(placesOf(assignments)))
  // A join that is under way when the client closes fails afterwards, in an event that must have a listener.
  consumer.on('error', error => say('error', { message: error.message }))
  const stream = await consumer.consume({
    topics: settings.topics,
    mode: 'committed',
    fallbackMode: 'earliest',
    // Its own commits name what was fetched, whether it was processed or not.
    autocommit: false
  })
  const left = over.then(() => {
    say('closing')
    return consumer.close(true)
  })
  let round = []
  for await (const message of stream) {
    if (isOver()) {
      continue
    }
    round.push(message)
    if (round.length === ROUND_RECORDS || stream.readableLength === 0) {
      work(round, consumer)
      round = []
    }
  }
  await left
}

await run(JSON.parse(process.argv[2]))
say('closed')
// Nothing that a client left open may hold the process.
process.exit(0)

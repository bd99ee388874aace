// A member of a consumer group, with kafkajs, that says what it is given and what it has processed, one JSON line
// each, until its input ends. Takes the settings and prints the lines of tests/support/group_member.py.
import { isOver, over, ownership, say, sayProcessed } from './member_lines.mjs'
import { required } from './packages.mjs'

const { Kafka, logLevel } = required('kafkajs')

async function run (settings) {
  const kafka = new Kafka({
    clientId: 'member',
    brokers: [settings.bootstrap],
    logLevel: logLevel.ERROR,
    // After a pause of a busy machine the client looks at this clock first, and only then at what was connected.
    connectionTimeout: 30_000
  })
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
      if (isOver() || !isRunning() || isStale()) {
        return
      }
      sayProcessed(batch.messages.map(({ offset }) => [batch.topic, batch.partition, Number(offset)]))
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

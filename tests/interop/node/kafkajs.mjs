// kafkajs for tests/support/node_client.py.
//
// Its consumer reads only as a member of a group. What is below the group, its own Cluster and Broker, reads assigned
// partitions with the same requests and the same decoders, so that is what `consume` goes through.
import { zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import { imported, required } from './packages.mjs'
import { bytes, positions, say, sendNumbered, serve, text } from './pipe.mjs'

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = required('kafkajs')
const Batch = required('kafkajs/src/consumer/batch')
const { lz4Compress, lz4Decompress } = await imported('@platformatic/wasm-utils')

// kafkajs brings gzip and leaves the others to its user. (The frames of the package lz4js are none that Java reads.)
CompressionCodecs[CompressionTypes.Snappy] = required('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => lz4Compress(encoder.buffer),
  decompress: async content => lz4Decompress(content)
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => zstdCompressSync(encoder.buffer),
  decompress: async content => zstdDecompressSync(content)
})

const COMPRESSION = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD
}
const acksOf = text => (text === 'all' ? -1 : Number(text))
const LOG_APPEND_TIME = 1
const FIRST_RETRY_MS = 100

function kafka ({ bootstrap, patience_ms: patienceMs = 30_000 }) {
  // Each retry waits about twice as long as the one before.
  const retries = Math.max(1, Math.floor(Math.log2(patienceMs / FIRST_RETRY_MS)))
  return new Kafka({
    clientId: 'tailrace-interop',
    brokers: [bootstrap],
    logLevel: logLevel.NOTHING,
    // After a pause of a busy machine the client looks at this clock first, and only then at what was connected.
    connectionTimeout: 30_000,
    retry: { initialRetryTime: FIRST_RETRY_MS, maxRetryTime: patienceMs, retries }
  })
}

async function during (client, work) {
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.disconnect()
  }
}

const admin = (request, work) => during(kafka(request).admin(), work)

/** The part of the client that its consumers stand on. */
function cluster (request) {
  const client = kafka(request)
  const create = Object.getOwnPropertySymbols(client).find(one => one.description === 'private:Kafka:createCluster')
  return client[create]({ allowAutoTopicCreation: false })
}

/** kafkajs has an object for the headers: a name that occurs more than once has a list of values. */
function headersOf (pairs) {
  const headers = {}
  for (const [name, value] of pairs) {
    (headers[name] ??= []).push(bytes(value))
  }
  return headers
}

const pairsOf = headers =>
  Object.entries(headers).flatMap(([name, values]) => [values].flat().map(value => [name, text(value)]))

function messageOf (record) {
  const message = { key: bytes(record.key), value: bytes(record.value), headers: headersOf(record.headers) }
  if (record.partition !== null) {
    message.partition = record.partition
  }
  if (record.timestamp_ms !== null) {
    message.timestamp = String(record.timestamp_ms)
  }
  return message
}

async function produce (request) {
  const { topic, records, compression, acks, idempotent } = request
  return during(kafka(request).producer({ idempotent, allowAutoTopicCreation: true }), async producer => {
    const answers = await producer.send({
      topic,
      messages: records.map(messageOf),
      acks: acksOf(acks),
      compression: COMPRESSION[compression]
    })
    return positions(records, answers.map(answer => [answer.partition, Number(answer.baseOffset)]))
  })
}

const produceNumbered = request =>
  during(kafka(request).producer({ idempotent: true, maxInFlightRequests: 1 }), producer =>
    sendNumbered(request, messages => producer.send({ topic: request.topic, messages }))
  )

async function consume (request) {
  const { topic, partition, count, announce_first: announceFirst } = request
  const deadline = Date.now() + request.timeout_seconds * 1000
  const result = []
  await during(cluster(request), async connected => {
    await connected.addTargetTopic(topic)
    const [nodeId] = Object.keys(connected.findLeaderForPartitions(topic, [partition]))
    const broker = await connected.findBroker({ nodeId })
    let fetchOffset = String(request.start)
    while (result.length < count && Date.now() < deadline) {
      const { responses } = await broker.fetch({
        maxWaitTime: request.max_wait_ms,
        topics: [{ topic, partitions: [{ partition, fetchOffset, maxBytes: 1_048_576 }] }]
      })
      const batch = new Batch(topic, fetchOffset, responses[0].partitions[0])
      if (batch.rawMessages.length > 0) {
        fetchOffset = String(Number(batch.lastOffset()) + 1)
      }
      for (const message of batch.messages) {
        if (result.length === 0 && announceFirst) {
          say({ event: 'first' })
        }
        result.push({
          partition,
          offset: Number(message.offset),
          timestamp_ms: Number(message.timestamp),
          log_append_time: message.batchContext.timestampType === LOG_APPEND_TIME,
          key: text(message.key),
          value: text(message.value),
          headers: pairsOf(message.headers)
        })
      }
    }
  })
  return result.slice(0, count)
}

const offsets = request =>
  admin(request, async client => {
    const listed = await client.fetchTopicOffsets(request.topic)
    return Object.fromEntries(
      listed
        .filter(({ partition }) => request.partitions.includes(partition))
        .map(({ partition, low, high }) => [partition, [Number(low), Number(high)]])
    )
  })

const offsetForTime = request =>
  admin(request, async client => {
    // Where all records are older, kafkajs gives the end of the partition instead of saying so.
    const found = await client.fetchTopicOffsetsByTimestamp(request.topic, request.timestamp_ms)
    const end = (await client.fetchTopicOffsets(request.topic)).find(one => one.partition === request.partition).high
    const { offset } = found.find(one => one.partition === request.partition)
    return offset === end ? null : Number(offset)
  })

const create = request =>
  admin(request, client =>
    // False says that there is such a topic already: kafkajs does not call that an error.
    client.createTopics({
      validateOnly: request.validate_only,
      waitForLeaders: !request.validate_only,
      topics: [
        {
          topic: request.topic,
          numPartitions: request.partitions,
          configEntries: Object.entries(request.configs).map(([name, value]) => ({ name, value }))
        }
      ]
    })
  )

const resource = topic => ({ type: ConfigResourceTypes.TOPIC, name: topic })

const describe = request =>
  admin(request, async client => {
    const { topics } = await client.fetchTopicMetadata({ topics: [request.topic] })
    const { resources } = await client.describeConfigs({
      resources: [{ ...resource(request.topic), configNames: request.names }]
    })
    return {
      partitions: topics[0].partitions
        .map(({ partitionId, leader, replicas, isr }) => ({ partition: partitionId, leader, replicas, isr }))
        .sort((one, other) => one.partition - other.partition),
      configs: Object.fromEntries(resources[0].configEntries.map(entry => [entry.configName, entry.configValue]))
    }
  })

const alterConfigs = request =>
  admin(request, client =>
    client.alterConfigs({
      validateOnly: request.validate_only,
      resources: [
        {
          ...resource(request.topic),
          configEntries: Object.entries(request.configs).map(([name, value]) => ({ name, value }))
        }
      ]
    })
  ).then(() => true)

const createPartitions = ({ topic, count, validate_only: validateOnly, ...request }) =>
  admin(request, client => client.createPartitions({ topicPartitions: [{ topic, count }], validateOnly }))

const deleteRecords = request =>
  admin(request, async client => {
    // kafkajs looks for the leader before it has asked for it: a call that loads the metadata has to come first.
    await client.fetchTopicOffsets(request.topic)
    await client.deleteTopicRecords({
      topic: request.topic,
      partitions: [{ partition: request.partition, offset: String(request.offset) }]
    })
  })

const describeCluster = request =>
  admin(request, async client => {
    const { brokers, controller, clusterId } = await client.describeCluster()
    return { brokers: brokers.map(({ nodeId, host, port }) => [nodeId, `${host}:${port}`]), controller, clusterId }
  })

await serve(
  {
    produce,
    produce_numbered: produceNumbered,
    consume,
    offsets,
    offset_for_time: offsetForTime,
    create,
    describe,
    alter_configs: alterConfigs,
    create_partitions: createPartitions,
    delete_records: deleteRecords,
    describe_cluster: describeCluster,
    list: request => admin(request, client => client.listTopics()),
    delete: request => admin(request, client => client.deleteTopics({ topics: [request.topic] }))
  },
  error => error.code
)

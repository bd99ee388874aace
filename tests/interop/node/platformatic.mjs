// @platformatic/kafka for tests/support/node_client.py.
//
// Its streams read only as members of a group; `Consumer.fetch` reads assigned partitions without one.
import { imported } from './packages.mjs'
import { bytes, positions, say, sendNumbered, serve, text } from './pipe.mjs'

const { Admin, Consumer, Producer, compatibilityPartitioner, IncrementalAlterConfigOperationTypes } =
  await imported('@platformatic/kafka')

const ACKS = { 0: 0, 1: 1, all: -1 }
const RETRY_MS = 200
const TIMESTAMP_TYPE = 8
const TOPIC = 2
const EARLIEST = -2n
const LATEST = -1n

const options = ({ bootstrap, patience_ms: patienceMs = 30_000 }) => ({
  clientId: 'tailrace-interop',
  bootstrapBrokers: [bootstrap],
  connectTimeout: 30_000,
  timeout: 30_000,
  retries: Math.ceil(patienceMs / RETRY_MS),
  retryDelay: RETRY_MS
})

async function during (client, work) {
  try {
    return await work(client)
  } finally {
    await client.close()
  }
}

const admin = (request, work) => during(new Admin(options(request)), work)
// A consumer must name a group, even where it never joins it.
const consumer = (request, work) => during(new Consumer({ ...options(request), groupId: 'unused' }), work)

// A Map whose keys are buffers keeps a name that occurs more than once.
const headersOf = pairs => new Map(pairs.map(([name, value]) => [Buffer.from(name), bytes(value)]))

function messageOf (topic, record) {
  const message = {
    topic,
    key: bytes(record.key) ?? undefined,
    value: bytes(record.value),
    headers: headersOf(record.headers)
  }
  if (record.partition !== null) {
    message.partition = record.partition
  }
  if (record.timestamp_ms !== null) {
    message.timestamp = BigInt(record.timestamp_ms)
  }
  return message
}

async function produce (request) {
  // The compatibility partitioner is Java's; the client's own default places a part of the keys elsewhere.
  const settings = { ...options(request), autocreateTopics: true, partitioner: compatibilityPartitioner }
  return during(new Producer(settings), async producer => {
    const { offsets } = await producer.send({
      messages: request.records.map(record => messageOf(request.topic, record)),
      acks: ACKS[request.acks],
      compression: request.compression,
      idempotent: request.idempotent
    })
    // Without acknowledgements the client says nothing of offsets.
    const first = (offsets ?? []).map(({ partition, offset }) => [partition, Number(offset)])
    return positions(request.records, first)
  })
}

const produceNumbered = request =>
  during(new Producer({ ...options(request), idempotent: true }), producer =>
    sendNumbered(request, messages =>
      producer.send({ messages: messages.map(message => ({ ...message, topic: request.topic })), acks: ACKS.all })
    )
  )

const consume = request =>
  consumer(request, async client => {
    const { topic, partition, count } = request
    const deadline = Date.now() + request.timeout_seconds * 1000
    const { topics } = await client.metadata({ topics: [topic] })
    const { id: topicId, partitions } = topics.get(topic)
    let fetchOffset = BigInt(request.start)
    const result = []
    while (result.length < count && Date.now() < deadline) {
      const { responses } = await client.fetch({
        node: partitions[partition].leader,
        maxWaitTime: request.max_wait_ms,
        topics: [
          {
            topicId,
            partitions: [
              {
                partition,
                fetchOffset,
                currentLeaderEpoch: partitions[partition].leaderEpoch,
                lastFetchedEpoch: -1,
                partitionMaxBytes: 1_048_576
              }
            ]
          }
        ]
      })
      // In an incremental session a partition without news is left out of the answer.
      for (const batch of responses.flatMap(one => one.partitions).flatMap(one => one.records ?? [])) {
        const logAppendTime = (batch.attributes & TIMESTAMP_TYPE) !== 0
        for (const record of batch.records) {
          const offset = batch.firstOffset + BigInt(record.offsetDelta)
          if (offset < fetchOffset) {
            continue
          }
          if (result.length === 0 && request.announce_first) {
            say({ event: 'first' })
          }
          const timestamp = logAppendTime ? batch.maxTimestamp : batch.firstTimestamp + record.timestampDelta
          result.push({
            partition,
            offset: Number(offset),
            timestamp_ms: Number(timestamp),
            log_append_time: logAppendTime,
            key: text(record.key),
            value: text(record.value),
            headers: record.headers.map(([name, value]) => [name.toString(), text(value)])
          })
        }
        fetchOffset = batch.firstOffset + BigInt(batch.lastOffsetDelta) + 1n
      }
    }
    return result.slice(0, count)
  })

const offsets = request =>
  consumer(request, async client => {
    const asked = { topics: [request.topic], partitions: { [request.topic]: request.partitions } }
    const [first, last] = await Promise.all(
      [EARLIEST, LATEST].map(async timestamp => (await client.listOffsets({ ...asked, timestamp })).get(request.topic))
    )
    return Object.fromEntries(request.partitions.map(number => [number, [Number(first[number]), Number(last[number])]]))
  })

const offsetForTime = request =>
  admin(request, async client => {
    const [{ partitions }] = await client.listOffsets({
      topics: [
        {
          name: request.topic,
          partitions: [{ partitionIndex: request.partition, timestamp: BigInt(request.timestamp_ms) }]
        }
      ]
    })
    return partitions[0].offset < 0n ? null : Number(partitions[0].offset)
  })

const entries = configs => Object.entries(configs).map(([name, value]) => ({ name, value }))

const create = request =>
  admin(request, async client => {
    const [topic] = await client.createTopics({
      topics: [request.topic],
      partitions: request.partitions,
      configs: entries(request.configs)
    })
    return topic
  })

const describe = request =>
  admin(request, async client => {
    const { topics } = await client.metadata({ topics: [request.topic], forceUpdate: true })
    const { id, partitions } = topics.get(request.topic)
    const [described] = await client.describeConfigs({
      resources: [{ resourceType: TOPIC, resourceName: request.topic, configurationKeys: request.names ?? null }]
    })
    return {
      id,
      partitions: partitions.map(({ leader, replicas, isr }, partition) => ({ partition, leader, replicas, isr })),
      configs: Object.fromEntries(described.configs.map(({ name, value }) => [name, value]))
    }
  })

const alterConfigs = request =>
  admin(request, client =>
    client.alterConfigs({
      validateOnly: request.validate_only,
      resources: [{ resourceType: TOPIC, resourceName: request.topic, configs: entries(request.configs) }]
    })
  )

const incrementalAlterConfigs = request =>
  admin(request, client =>
    client.incrementalAlterConfigs({
      validateOnly: request.validate_only,
      resources: [
        {
          resourceType: TOPIC,
          resourceName: request.topic,
          configs: request.changes.map(({ operation, ...change }) => ({
            ...change,
            configOperation: IncrementalAlterConfigOperationTypes[operation]
          }))
        }
      ]
    })
  )

const createPartitions = ({ topic, count, validate_only: validateOnly, ...request }) =>
  admin(request, client => client.createPartitions({ topics: [{ name: topic, count }], validateOnly }))

const deleteRecords = request =>
  admin(request, async client => {
    const [topic] = await client.deleteRecords({
      topics: [
        { name: request.topic, partitions: [{ partition: request.partition, offset: BigInt(request.offset) }] }
      ]
    })
    return Number(topic.partitions[0].lowWatermark)
  })

const describeCluster = request =>
  admin(request, async client => {
    const { brokers, controllerId, id } = await client.metadata({ topics: [] })
    return {
      brokers: Array.from(brokers, ([nodeId, { host, port }]) => [nodeId, `${host}:${port}`]),
      controller: controllerId,
      clusterId: id
    }
  })

const describeLogDirs = request =>
  admin(request, async client => {
    const described = await client.describeLogDirs({
      topics: [{ name: request.topic, partitions: request.partitions }]
    })
    return described.flatMap(({ results }) =>
      results.flatMap(({ logDir, topics }) =>
        topics.flatMap(({ name, partitions }) =>
          partitions.map(({ partitionIndex, partitionSize }) => [logDir, name, partitionIndex, Number(partitionSize)])
        )
      )
    )
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
    incremental_alter_configs: incrementalAlterConfigs,
    create_partitions: createPartitions,
    delete_records: deleteRecords,
    describe_cluster: describeCluster,
    describe_log_dirs: describeLogDirs,
    list: request => admin(request, client => client.listTopics()),
    delete: request => admin(request, client => client.deleteTopics({ topics: [request.topic] }))
  },
  error => error.apiCode
)

/** Makes one call with each of two stores on one client, and exits. A test reads its warnings. */
import { DynamoDB } from '@aws-sdk/client-dynamodb'
import { dynamodbStore } from '../../../src/stores/dynamodb/index.ts'
import { clientConfig } from '../../servers/dynalite.ts'

const [endpoint, table, maxSockets] = process.argv.slice(2)
const requestHandler = { httpAgent: { maxSockets: Number(maxSockets) } }
const client = new DynamoDB({ ...clientConfig(endpoint!), requestHandler })
for (let n = 0; n < 2; n++) await dynamodbStore({ client, table: table! }).now!()
client.destroy()

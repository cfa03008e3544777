/** Starts the service, unless one of its routes is unprotected. */
import { randomUUID } from 'node:crypto'
import { NestFactory } from '@nestjs/core'
import { auditRoutes, requireProtected } from 'oncekey/nest'
import { AppModule } from './app-module.ts'

const app = await NestFactory.create(AppModule, { logger: ['error', 'warn'], rawBody: true })

// Work in progress is settled before the process ends. StoreModule closes the store after it.
app.enableShutdownHooks()
requireProtected(auditRoutes(app))
await app.listen(process.env['PORT'] ?? 3000, '127.0.0.1')

console.log(`Run this twice; the second reply is a replay:

  curl -i ${await app.getUrl()}/payments \\
    -H 'Authorization: Bearer demo-a' \\
    -H 'Idempotency-Key: ${randomUUID()}' \\
    -H 'Content-Type: application/json' \\
    -d '{"amountCents":990}'

Ctrl-C stops the service.`)

import { Module } from '@nestjs/common'
import { APP_GUARD } from '@nestjs/core'
import { IdempotencyModule, type NestRequest } from 'oncekey/nest'
import type { SqliteStore } from 'oncekey/sqlite'
import { AuthGuard } from './auth-guard.ts'
import { PaymentsController } from './payments-controller.ts'
import { PaymentsService } from './payments-service.ts'
import { STORE, StoreModule } from './store-module.ts'

/** The request after authentication. */
interface AuthenticatedRequest extends NestRequest {
  readonly account: string
}

@Module({
  imports: [
    StoreModule,
    IdempotencyModule.forRootAsync({
      imports: [StoreModule],
      inject: [STORE],
      useFactory: (store: SqliteStore) => ({
        store,
        tenant: (request: AuthenticatedRequest) => request.account,
      }),
    }),
  ],
  controllers: [PaymentsController],
  // Guards run before keys are claimed: a rejected request uses no key.
  providers: [PaymentsService, { provide: APP_GUARD, useClass: AuthGuard }],
})
export class AppModule {}

import {
  Injectable,
  UnauthorizedException,
  type CanActivate,
  type ExecutionContext,
} from '@nestjs/common'

/** Demo tokens and their accounts. A real service verifies a signed token. */
const ACCOUNTS: ReadonlyMap<string, string> = new Map([
  ['Bearer demo-a', 'account-a'],
  ['Bearer demo-b', 'account-b'],
])

@Injectable()
export class AuthGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const request = context.switchToHttp().getRequest<Unauthenticated>()
    const account = ACCOUNTS.get(request.headers.authorization ?? '')
    if (account === undefined) throw new UnauthorizedException()
    request.account = account
    return true
  }
}

interface Unauthenticated {
  readonly headers: { readonly authorization?: string }
  account?: string
}

/**
 * The payments service of a run: it logs the queries for unknown outcomes, and has bad neighbours
 * if `CHAOS_NEIGHBOURS` is set. It is killed, so it handles no signals.
 */
import { NO_EXTENSION } from '../../examples/payments/extension.ts'
import { startService } from '../../examples/payments/service.ts'
import { readSettings } from '../../examples/payments/settings.ts'
import { welcome } from '../../examples/payments/welcome.ts'
import { BAD_NEIGHBOURS } from '../neighbours/extension.ts'
import { notingLooks } from './looks.ts'

const settings = readSettings(process.env)
const hasNeighbours = process.env['CHAOS_NEIGHBOURS'] === 'on'
const extension = notingLooks(hasNeighbours ? BAD_NEIGHBOURS : NO_EXTENSION)
const service = await startService(settings, extension)
console.log(welcome(settings, service.port))

export { type Clock, systemClock } from "./clock.js";
export {
  FencingError,
  IssuerWentBackwards,
  LockLost,
  type LossReason,
  NotAcquired,
  OutcomeUnknown,
  Refused,
  TokenImplausible,
  TokenStale,
  Unavailable,
} from "./errors.js";
export type { FencedFetch } from "./fetch.js";
export { Gateway, type GatewayOptions, type LockOptions } from "./gateway.js";
export type { CredentialOptions, FencedCredentials, Lock } from "./lock.js";
export { refusalOf, throwForRefusal } from "./refusals.js";
export { canonical, escape, escapePath } from "./resource.js";
export type { S3Plugin } from "./s3.js";
export { type Mode, parseSequencer, type Sequencer } from "./sequencer.js";
export { Token } from "./token.js";

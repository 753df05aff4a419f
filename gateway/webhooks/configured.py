"""What the configuration says of webhooks and alarms, as the outbox and the watch take it."""

from gateway.config import Config
from gateway.config.observability import Alarm as AlarmSection
from gateway.config.observability import Webhook as WebhookSection
from gateway.db.webhooks import Wanted
from gateway.webhooks import signing
from gateway.webhooks.alarms import Alarm
from gateway.webhooks.delivery import Receiver
from gateway.webhooks.outbox import Webhook
from gateway.webhooks.rate import Rule


def webhooks(config: Config) -> list[Webhook]:
    """The webhooks, each with the alarms it is sent."""
    return [_webhook(one, config.alarms) for one in config.webhooks]


def alarms(config: Config) -> list[Alarm]:
    """The alarms."""
    return [Alarm(one.name, one.prefix, Rule(one.more_than, one.minutes)) for one in config.alarms]


def _webhook(section: WebhookSection, alarms: tuple[AlarmSection, ...]) -> Webhook:
    secrets = [secret for secret in (section.secret, section.former_secret) if secret is not None]
    keys = tuple(signing.key_of(secret.get_secret_value()) for secret in secrets)
    told = tuple(alarm.name for alarm in alarms if not alarm.webhooks or section.name in alarm.webhooks)
    wanted = Wanted(section.kinds, section.prefix, section.observed, told)
    return Webhook(section.name, Receiver(section.url, keys), wanted)

{{/* What all pods have: the gateway as a user without rights, on a file system that it cannot write. */}}
{{- define "gateway.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.userId }}
runAsGroup: {{ .Values.userId }}
fsGroup: {{ .Values.userId }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "gateway.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The environment overrides the file, so that the file need not repeat what the chart knows. */}}
{{- define "gateway.env" -}}
- {name: GATEWAY_SERVER__DRAIN, value: {{ .Values.drainSeconds | quote }}}
- {name: GATEWAY_SERVER__WATCH, value: "true"}
{{- with .Values.tls.secretName }}
- {name: GATEWAY_SERVER__TLS_CERTIFICATE, value: /etc/gateway/tls/tls.crt}
- {name: GATEWAY_SERVER__TLS_KEY, value: /etc/gateway/tls/tls.key}
{{- end }}
{{- if .Values.tls.clientAuthorities.secretName }}
- {name: GATEWAY_SERVER__CLIENT_AUTHORITIES, value: /etc/gateway/client-authorities/authorities.crt}
- {name: GATEWAY_SERVER__CLIENT_CERTIFICATES, value: {{ .Values.tls.clientCertificates }}}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gateway.mounts" -}}
- {name: config, mountPath: /etc/gateway/config, readOnly: true}
- {name: secrets, mountPath: /etc/gateway/secrets, readOnly: true}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /etc/gateway/tls, readOnly: true}
{{- end }}
{{- if .Values.tls.clientAuthorities.secretName }}
- {name: client-authorities, mountPath: /etc/gateway/client-authorities, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- with .Values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* `hook` is a suffix: a Job before the release has a ConfigMap and a Secret of its own, because those of the release
     are not there yet, or still the former ones. */}}
{{- define "gateway.volumes" -}}
{{- $values := .root.Values -}}
{{- $name := printf "%s%s" (include "gateway.fullname" .root) .hook -}}
- name: config
  configMap:
    name: {{ default $name $values.existingConfigMap | quote }}
    defaultMode: 0440
- name: secrets
  {{- if or $values.secrets.existing $values.secrets.values }}
  projected:
    defaultMode: 0440
    sources:
      {{- range $values.secrets.existing }}
      - secret: {name: {{ . | quote }}}
      {{- end }}
      {{- if $values.secrets.values }}
      - secret: {name: {{ $name | quote }}}
      {{- end }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- if $values.tls.secretName }}
- name: tls
  secret: {secretName: {{ $values.tls.secretName | quote }}, defaultMode: 0440}
{{- end }}
{{- with $values.tls.clientAuthorities }}
{{- if .secretName }}
- name: client-authorities
  secret:
    secretName: {{ .secretName | quote }}
    items: [{key: {{ .key | quote }}, path: authorities.crt}]
    defaultMode: 0440
{{- end }}
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- with $values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The kubelet has no certificate, so it can only connect where one is demanded. */}}
{{- define "gateway.probe" -}}
{{- if and .root.Values.tls.secretName (eq .root.Values.tls.clientCertificates "demand") -}}
tcpSocket: {port: http}
{{- else -}}
httpGet: {path: {{ .path }}, port: http, scheme: {{ include "gateway.scheme" .root }}}
{{- end }}
{{ toYaml .settings }}
{{- end -}}

{{- define "peername.name" -}}
{{- if contains "peername" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-peername{{ end }}
{{- end }}

{{- define "peername.selector" -}}
app.kubernetes.io/name: peername
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "peername.labels" -}}
{{ include "peername.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Takes the values of this chart, and `version`. */ -}}
{{- define "peername.image" -}}
image: {{ printf "%s:%s" .values.image.repository (.values.image.tag | default .version) | quote }}
imagePullPolicy: {{ .values.image.pullPolicy }}
{{- end }}

{{- /* Takes the list of capabilities. An ordinary user has them from the file of the image. */ -}}
{{- define "peername.securityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
seccompProfile:
  type: RuntimeDefault
capabilities:
  drop: [ALL]
  {{- with . }}
  add: [{{ join ", " . }}]
  {{- end }}
{{- end }}

{{- /* Takes the list of capabilities of root: the files and processes of the node are root's. */ -}}
{{- define "peername.agentContext" -}}
runAsUser: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
seccompProfile:
  type: RuntimeDefault
capabilities:
  drop: [ALL]
  {{- with . }}
  add: [{{ join ", " . }}]
  {{- end }}
{{- end }}

{{- /* Options that all commands have. */ -}}
{{- define "peername.commonArgs" -}}
- --drain={{ .drainSeconds }}s
{{ include "peername.adminArg" . }}
{{- end }}

{{- /* Takes `metrics`, and `adminSocket` if it is another one. */ -}}
{{- define "peername.adminArg" -}}
{{- if .metrics.enabled -}}
- --admin=0.0.0.0:{{ .metrics.port }}
{{- else -}}
- --admin=unix:{{ .adminSocket | default "/run/peername/admin.sock" }}
{{- end }}
{{- end }}

{{- /* By execution, because nothing else reaches a Unix socket. A drained or disconnected proxy is taken out of its Service.
Takes what `peername.adminArg` takes. */ -}}
{{- define "peername.probes" -}}
readinessProbe:
  {{- if .metrics.enabled }}
  httpGet:
    path: /readyz
    port: {{ .metrics.port }}
  {{- else }}
  exec:
    command: [peername, doctor, --admin, "unix:{{ .adminSocket | default "/run/peername/admin.sock" }}"]
  {{- end }}
  periodSeconds: 5
  timeoutSeconds: 6
{{- end }}

{{- define "peername.routesContainer" -}}
- name: peername-routes
  {{- include "peername.image" . | nindent 2 }}
  args: [routes, add]
  securityContext:
    {{- include "peername.securityContext" (list "NET_ADMIN") | nindent 4 }}
{{- end }}

{{- /* `peername proxy`; takes values, version, and the table of its options. */ -}}
{{- define "peername.proxyContainer" -}}
- name: peername
  {{- include "peername.image" . | nindent 2 }}
  args:
    - proxy
    {{- range .options.listen }}
    - --listen={{ . }}
    {{- end }}
    - --target={{ .options.targetV4 }}
    {{- with .options.targetV6 }}
    - --target={{ . }}
    {{- end }}
    {{- if not .options.trust }}
    {{- fail "list the balancers in `trust`: without it the proxy accepts no header" }}
    {{- end }}
    {{- range .options.trust }}
    - --trust={{ . }}
    {{- end }}
    {{- include "peername.commonArgs" .values | nindent 4 }}
    {{- range .options.extraArgs }}
    - {{ . | quote }}
    {{- end }}
  {{- include "peername.probes" .values | nindent 2 }}
  volumeMounts:
    - name: peername
      mountPath: /run/peername
  resources:
    {{- toYaml .values.resources | nindent 4 }}
  securityContext:
    {{- include "peername.securityContext" (list "NET_RAW" "NET_BIND_SERVICE") | nindent 4 }}
{{- end }}

{{- define "peername.volumes" -}}
- name: peername
  emptyDir:
    medium: Memory
{{- end }}

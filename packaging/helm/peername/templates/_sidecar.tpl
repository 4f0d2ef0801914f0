{{- /*
The sidecar for a pod of another chart that has this one as its dependency `peername`:

    initContainers: {{- include "peername.sidecar.initContainers" .Subcharts.peername | nindent 8 }}
    containers:     {{- include "peername.sidecar.containers" .Subcharts.peername | nindent 8 }}
    volumes:        {{- include "peername.sidecar.volumes" .Subcharts.peername | nindent 8 }}
*/ -}}
{{- define "peername.sidecar.initContainers" -}}
{{ include "peername.routesContainer" (dict "values" .Values "version" .Chart.AppVersion) }}
{{- end }}

{{- define "peername.sidecar.containers" -}}
{{ include "peername.proxyContainer" (dict "values" .Values "version" .Chart.AppVersion "options" .Values.sidecar) }}
{{- end }}

{{- define "peername.sidecar.volumes" -}}
{{ include "peername.volumes" . }}
{{- end }}

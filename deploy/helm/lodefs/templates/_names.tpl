{{- define "lodefs.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-lodefs" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lodefs.selector" -}}
app.kubernetes.io/name: lodefs
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lodefs.labels" -}}
{{ include "lodefs.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "lodefs.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}
{{- else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "lodefs.peersSecret" -}}
{{ .Values.peers.existingSecret | default (printf "%s-peers" (include "lodefs.name" .)) }}
{{- end }}

{{- define "lodefs.priorityClass" -}}
{{- with .Values.priorityClass.name }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "lodefs.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "lodefs.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* What a container gives up that needs no privilege. */}}
{{- define "lodefs.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The sources of a volume as the kubelet makes it for a pod's account: for single containers. */}}
{{- define "lodefs.apiToken" -}}
defaultMode: 0440
sources:
  - serviceAccountToken: {path: token, expirationSeconds: 3607}
  - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
  - downwardAPI:
      items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]
{{- end }}

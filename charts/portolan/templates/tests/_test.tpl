{{/* Annotations of the pods of `helm test`. */}}
{{- define "portolan.testAnnotations" -}}
helm.sh/hook: test
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* The fields of test pods. */}}
{{- define "portolan.testPod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
restartPolicy: Never
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "portolan.unprivilegedPod" (dict) | nindent 2 }}
{{- end -}}

{{/* The fields of test containers: portolanctl, of the controller's image. */}}
{{- define "portolan.testContainer" -}}
image: {{ include "portolan.image" (dict "root" . "image" .Values.controller.image) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [portolanctl]
resources: {requests: {cpu: 10m, memory: 16Mi}}
securityContext:
  {{- include "portolan.unprivileged" (dict) | nindent 2 }}
{{- end -}}

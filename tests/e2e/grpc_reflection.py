"""A gRPC client that knows nothing of a server but its address.

It asks server reflection for the services' descriptors, makes message classes of them, and calls by name: what a
client that was written without this project's files can do.
"""

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_REFLECTION = 'grpc.reflection.v1alpha'
_HEALTH = 'grpc.health.v1'

# Message name -> fields: (name, number, type, repeated). A type is a scalar of _FIELD or a message's name.
_REFLECTION_MESSAGES = {
    'ServerReflectionRequest': [('file_by_filename', 3, _FIELD.TYPE_STRING, False),
                                ('file_containing_symbol', 4, _FIELD.TYPE_STRING, False),
                                ('list_services', 7, _FIELD.TYPE_STRING, False)],
    'FileDescriptorResponse': [('file_descriptor_proto', 1, _FIELD.TYPE_BYTES, True)],
    'ServiceResponse': [('name', 1, _FIELD.TYPE_STRING, False)],
    'ListServiceResponse': [('service', 1, 'ServiceResponse', True)],
    'ErrorResponse': [('error_code', 1, _FIELD.TYPE_INT32, False),
                      ('error_message', 2, _FIELD.TYPE_STRING, False)],
    'ServerReflectionResponse': [('file_descriptor_response', 4, 'FileDescriptorResponse', False),
                                 ('list_services_response', 6, 'ListServiceResponse', False),
                                 ('error_response', 7, 'ErrorResponse', False)],
}
_HEALTH_MESSAGES = {
    'HealthCheckRequest': [('service', 1, _FIELD.TYPE_STRING, False)],
    # An enum, which has the same bytes.
    'HealthCheckResponse': [('status', 1, _FIELD.TYPE_INT32, False)],
}
HEALTH_SERVING = 1


def _make_classes(package, messages):
    """Message classes from a table as above."""
    file = descriptor_pb2.FileDescriptorProto(name=f'{package}.proto', package=package, syntax='proto3')
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, repeated in fields:
            field = message.field.add(name=field_name, number=number)
            field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            if isinstance(kind, str):
                field.type = _FIELD.TYPE_MESSAGE
                field.type_name = f'.{package}.{kind}'
            else:
                field.type = kind
                if not repeated and name == 'ServerReflectionRequest':
                    # Which question is asked shows even if it is the empty string.
                    field.oneof_index = 0
        if name == 'ServerReflectionRequest':
            message.oneof_decl.add(name='message_request')
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    factory = message_factory.MessageFactory(pool)
    return {name: factory.GetPrototype(pool.FindMessageTypeByName(f'{package}.{name}'))
            for name in messages}


_reflection = _make_classes(_REFLECTION, _REFLECTION_MESSAGES)
_health = _make_classes(_HEALTH, _HEALTH_MESSAGES)


class ReflectedClient:
    """Calls the methods of a server by their names. One thread, or several."""

    def __init__(self, address, timeout_s=60):
        self.timeout_s = timeout_s
        # A proxy of the environment must not come between; and no limit of the client's hides the server's.
        self.channel = grpc.insecure_channel(address, options=[
            ('grpc.enable_http_proxy', 0), ('grpc.max_receive_message_length', -1)])
        self._pool = descriptor_pool.DescriptorPool()
        self._factory = message_factory.MessageFactory(self._pool)
        self._known_files = set()
        self._methods = {}

    def close(self):
        self.channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def services(self):
        return [service.name for service in self._ask(list_services='').list_services_response.service]

    def message(self, name):
        """The class of a message, by its full name."""
        try:
            return self._factory.GetPrototype(self._pool.FindMessageTypeByName(name))
        except KeyError:
            self._learn(file_containing_symbol=name)
            return self._factory.GetPrototype(self._pool.FindMessageTypeByName(name))

    def call(self, method, timeout_s=None, metadata=None, **fields):
        """Calls 'package.Service/Method' with a request of these fields; grpc.RpcError when it fails."""
        request_class, callable_ = self._method(method)
        return callable_(request_class(**fields), timeout=timeout_s or self.timeout_s, metadata=metadata)

    def future(self, method, **fields):
        """As call, without waiting."""
        request_class, callable_ = self._method(method)
        return callable_.future(request_class(**fields), timeout=self.timeout_s)

    def health(self, service=''):
        """The status that the server's health service tells for a service."""
        check = self.channel.unary_unary(
            f'/{_HEALTH}.Health/Check',
            request_serializer=_health['HealthCheckRequest'].SerializeToString,
            response_deserializer=_health['HealthCheckResponse'].FromString)
        return check(_health['HealthCheckRequest'](service=service), timeout=self.timeout_s).status

    def _method(self, method):
        if method not in self._methods:
            service_name, method_name = method.split('/')
            try:
                service = self._pool.FindServiceByName(service_name)
            except KeyError:
                self._learn(file_containing_symbol=service_name)
                service = self._pool.FindServiceByName(service_name)
            descriptor = service.methods_by_name[method_name]
            request_class = self._factory.GetPrototype(descriptor.input_type)
            reply_class = self._factory.GetPrototype(descriptor.output_type)
            self._methods[method] = (request_class, self.channel.unary_unary(
                f'/{method}', request_serializer=request_class.SerializeToString,
                response_deserializer=reply_class.FromString))
        return self._methods[method]

    def _learn(self, **question):
        """Adds the file that the server answers with to the pool, after those that it imports."""
        files = {}
        for data in self._ask(**question).file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            files[file.name] = file
        for name in list(files):
            self._add(name, files)

    def _add(self, name, files):
        if name in self._known_files:
            return
        self._known_files.add(name)
        if name not in files:
            return self._learn(file_by_filename=name)
        for dependency in files[name].dependency:
            self._add(dependency, files)
        self._pool.Add(files[name])

    def _ask(self, **question):
        stream = self.channel.stream_stream(
            f'/{_REFLECTION}.ServerReflection/ServerReflectionInfo',
            request_serializer=_reflection['ServerReflectionRequest'].SerializeToString,
            response_deserializer=_reflection['ServerReflectionResponse'].FromString)
        requests = iter([_reflection['ServerReflectionRequest'](**question)])
        answer = next(stream(requests, timeout=self.timeout_s))
        if answer.HasField('error_response'):
            raise LookupError(f'{question}: {answer.error_response.error_message}')
        return answer

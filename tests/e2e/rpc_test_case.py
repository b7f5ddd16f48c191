"""A test case that asks a daemon by gRPC, and the numbers of the protocol."""

import grpc

import support
from grpc_reflection import ReflectedClient

GET, BATCH_GET = 'latchkey.v1.Lookup/Get', 'latchkey.v1.Lookup/BatchGet'
DESCRIBE, LIST = 'latchkey.v1.Lookup/DescribeTable', 'latchkey.v1.Lookup/ListTables'
FOUND, ABSENT, NOT_DONE = 1, 2, 3  # outcomes
REPLY_BUDGET, DAMAGED_DATA = 2, 3  # reasons
ROWS, PACKED = 0, 1  # answer forms


class RpcTestCase(support.TestCase):

    def connect(self, server):
        client = ReflectedClient(server.address)
        self.addCleanup(client.close)
        return client

    def assert_fails(self, code, client, method, words='.', **fields):
        with self.assertRaises(grpc.RpcError) as caught:
            client.call(method, **fields)
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        self.assertRegex(caught.exception.details(), words)

import java.io.File;
import java.net.InetAddress;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * One name node and one data node of HDFS on loopback, with data in a directory; ends when its standard input does.
 *
 * <p>Prints the port of the web interface when it serves.
 */
public final class HdfsServer {
  public static void main(String[] arguments) throws Exception {
    Configuration configuration = new Configuration();
    // Data nodes are told to clients by this name.
    configuration.set("dfs.datanode.hostname", "127.0.0.1");
    configuration.setBoolean("dfs.permissions.enabled", true);
    configuration.setInt("dfs.replication", 1);
    configuration.setInt("dfs.namenode.handler.count", 2);
    // A small machine with much else to do: nothing is dead because it is slow.
    configuration.setInt("dfs.client.socket-timeout", 60000);
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(configuration, new File(arguments[0])).numDataNodes(1).build();
    cluster.waitActive();
    // As on any cluster, everybody may make a directory of their own here.
    Path open = new Path("/open");
    cluster.getFileSystem().mkdirs(open);
    cluster.getFileSystem().setPermission(open, new FsPermission("1777"));
    System.out.println("ready " + cluster.getNameNode().getHttpAddress().getPort());
    System.out.flush();
    while (System.in.read() >= 0) {
      continue;
    }
    cluster.shutdown();
  }
}
